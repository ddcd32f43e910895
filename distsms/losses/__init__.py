"""The risks that are minimized: from scores to R, R_mu, a plane and one coefficient for each row."""
