"""Operations: `check` asks a cluster, `observe` shows a job, `verifier` judges its output, `operate` changes what a person decides.

`observe` and `verifier` can report wrongly, and break nothing of the guarantee. `operate` commits offsets, and relies on `check`.
"""
