"""Changes to a published encoder before it is trained further: words of a domain, longer texts."""
