"""Names of columns that several rooms read."""

TASK = "task"  # the name of the row's task, in a data set of several tasks
