"""The judge of an output, from outside: it shares only the transform with the job, so that it does not share its bugs."""
