"""`horovod.spark.conf`: pairs for `SparkConf.setAll` that configure whether and where Spark repeats failed tasks.

Spark accepts `spark.blacklist.*` as older names of `spark.excludeOnFailure.*`.
"""

_NEVER = "1"
_ALWAYS = "2147483647"

SPARK_CONF_ALWAYS_RESTART_FAILED_TASK = ("spark.task.maxFailures", _ALWAYS)

SPARK_CONF_BLACKLIST_DISABLED = ("spark.blacklist.enabled", "false")
SPARK_CONF_BLACKLIST_ENABLED = ("spark.blacklist.enabled", "true")

# Within the attempts of one task
_TASK_EXECUTOR = "spark.blacklist.task.maxTaskAttemptsPerExecutor"
_TASK_NODE = "spark.blacklist.task.maxTaskAttemptsPerNode"
SPARK_CONF_DONT_REUSE_EXECUTOR_FOR_SAME_TASK = (_TASK_EXECUTOR, _NEVER)
SPARK_CONF_REUSE_EXECUTOR_FOR_SAME_TASK = (_TASK_EXECUTOR, _ALWAYS)
SPARK_CONF_DONT_REUSE_NODE_FOR_SAME_TASK = (_TASK_NODE, _NEVER)
SPARK_CONF_REUSE_NODE_FOR_SAME_TASK = (_TASK_NODE, _ALWAYS)

# Within one stage
_STAGE_EXECUTOR = "spark.blacklist.stage.maxFailedTasksPerExecutor"
_STAGE_NODE = "spark.blacklist.stage.maxFailedExecutorsPerNode"
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR = (_STAGE_EXECUTOR, _NEVER)
SPARK_CONF_REUSE_FAILED_EXECUTOR = (_STAGE_EXECUTOR, _ALWAYS)
SPARK_CONF_DONT_REUSE_FAILING_NODE = (_STAGE_NODE, _NEVER)
SPARK_CONF_REUSE_FAILING_NODE = (_STAGE_NODE, _ALWAYS)

# Within one application
_APP_EXECUTOR = "spark.blacklist.application.maxFailedTasksPerExecutor"
_APP_NODE = "spark.blacklist.application.maxFailedExecutorsPerNode"
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR_IN_APP = (_APP_EXECUTOR, _NEVER)
SPARK_CONF_REUSE_FAILED_EXECUTOR_IN_APP = (_APP_EXECUTOR, _ALWAYS)
SPARK_CONF_DONT_REUSE_FAILING_NODE_IN_APP = (_APP_NODE, _NEVER)
SPARK_CONF_REUSE_FAILING_NODE_IN_APP = (_APP_NODE, _ALWAYS)

# Spark's own defaults
SPARK_CONF_DEFAULT_VALUES = {
    "spark.task.maxFailures": "4",
    "spark.blacklist.enabled": "false",
    _TASK_EXECUTOR: "1",
    _TASK_NODE: "2",
    _STAGE_EXECUTOR: "2",
    _STAGE_NODE: "2",
    _APP_EXECUTOR: "2",
    _APP_NODE: "2",
}
