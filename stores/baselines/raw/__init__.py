"""RAW: values written in place, by clients that nothing keeps apart; a lower bound."""
