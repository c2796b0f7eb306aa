"""The adaptive policy: models of how jobs scale, fitted from what they report, and the best allocation for all."""
