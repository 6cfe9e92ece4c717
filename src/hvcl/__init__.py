"""Hierarchical variational continual learning.

The rooms of the house, each with one small interface:

- `hvcl.layers`: mixture-of-variational-experts (MoVE) layers for networks of your own;
- `hvcl.objective`: the utility minus information costs, as named terms;
- `hvcl.streams`: benchmarks and your own arrays as streams of tasks;
- `hvcl.learners`: every method, by name;
- `hvcl.runs`: the loop, run folders, exact resume;
- `hvcl.evaluation`: accuracy matrix, calibration, what the gates know;
- `hvcl.report`: one HTML page from run folders.
"""
