"""Plugin of pytest for the mutation run: hypothesis need not find the smallest example, which takes most of its time."""

from hypothesis import Phase, settings

settings.register_profile("unshrunk", phases=(Phase.explicit, Phase.generate), database=None)
settings.load_profile("unshrunk")
