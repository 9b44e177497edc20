"""Images: files, views, and the bank that stores their features."""
