"""What makes a trained model presentable: its record, its card, its curve."""
