"""RAW: values written in place, without concurrency control; a lower bound."""
