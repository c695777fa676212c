"""FUSEE: a fully memory-disaggregated key-value store (Shen et al., FAST '23), and its variants."""
