"""What people look at: one page about a run or several, tables, plots."""
