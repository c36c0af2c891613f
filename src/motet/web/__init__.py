"""The dashboard `motet ui`: pages about runs, studies, federations and models, in a browser.

Reads stores and small files, and changes none of them. What needs torch is asked of another process (questions.py),
and what trains is a process of its own that outlives the dashboard (processes.py).
"""
