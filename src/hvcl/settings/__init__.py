"""Settings of methods on benchmarks, and where each value of a run comes from.

A file a method, `METHOD.json`, and `every-method.json` for what a benchmark asks of all (architecture, learning rate; what a
method does not have is passed over). By benchmark, each has up to four entries: `stream` (fields of `StreamConfig`), `learner`
(fields of the method's configuration, chosen by hand), `searched` (likewise, found by the search in experiments/) and `why`.
"""

from hvcl.settings.files import load_settings, method_settings, save_searched
from hvcl.settings.resolve import Resolved, Setting, resolve

__all__ = ["Resolved", "Setting", "load_settings", "method_settings", "resolve", "save_searched"]
