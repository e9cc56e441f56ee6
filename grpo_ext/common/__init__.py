"""Small helpers that any package may use; they import no other package of grpo_ext."""
