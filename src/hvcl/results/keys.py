"""Names of fields in a file of results, in one place: what is written under them is read under them."""

IDENTITY = ("benchmark", "scenario", "supervision", "memory", "method", "seeds", "evaluated_on", "task_names")
"""Fields of a run's configuration that say what its accuracy is the accuracy of."""

BUDGET = "budget"
RESULTS = "results"
MEAN_ACCURACY = "mean_accuracy"
STREAM = "stream"
LEARNER = "learner"
ENVIRONMENT = "environment"

# fields of the result of one seed
SEED = "seed"
AVERAGE_ACCURACY = "average_accuracy"
FORGETTING = "forgetting"
GENERATION = "generation"
SECONDS = "seconds"
