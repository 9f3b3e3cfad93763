"""`ridgeline doctor`: what a bug report needs to know of a machine and an installation, and what is wrong with them.

`machine`, `software` and `storage` gather facts and judge nothing; `findings` judges them and reads nothing. Whatever
cannot be found out is null, never an error: a doctor must work where nothing else does.
"""
