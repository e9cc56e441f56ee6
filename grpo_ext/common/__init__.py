"""Small helpers that any room may use; they import no other room."""
