"""The workers of `farandole test`: whether collectives give correct results on these hosts, and how fast the links are.

The workers run `python -m farandole.worker.observe.self_test`: checks of every collective (`collectives`, `formulas`),
then the links (`pairs`, in the order of `schedule`). Rank 0 sends a report to the launcher. Its data, verdict and text
are in `farandole.base.self_test`, which, like `schedule`, does not import the native library.
"""
