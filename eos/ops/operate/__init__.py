"""What an operator changes by hand, under the same fences and in the same transactions as the owners' own work."""
