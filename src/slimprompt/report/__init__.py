"""What is made for people out of records: tables beside the published numbers, figures, the page."""
