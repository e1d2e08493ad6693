"""Prove: run anybody's job on a throw-away cluster, torment it by a seeded schedule, and judge what it wrote."""
