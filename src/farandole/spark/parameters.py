"""Parameters of estimators and their models, in the form of `pyspark.ml`, declared in tables."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import cloudpickle  # type: ignore[import-untyped]
from pyspark.ml.param import Param, Params
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter

from farandole.spark.use_spark import active_context

# Names of Horovod's setters that do not follow from the parameter's.
_IRREGULAR = {
    "shuffle_buffer_size": "setShufflingBufferSize",
    "train_reader_num_workers": "setTrainReaderNumWorker",
    "val_reader_num_workers": "setValReaderNumWorker",
    "inmemory_cache_all": "setInMemoryCacheAll",
}


class Declared(Params, MLReadable, MLWritable):
    """A stage whose parameters are declared in tables. They are set by keywords, or by setX.

    Attributes:
        PARAMETERS: the parameters, with their defaults and one-line descriptions.
        UNUSED: Horovod's parameters that have no effect here, with the reasons. Setting one warns.
        NOT_SAVED: parameters that depend on the environment, and must be set again after `load`.
    """

    PARAMETERS: ClassVar[Mapping[str, tuple[Any, str]]] = {}
    UNUSED: ClassVar[Mapping[str, str]] = {}
    NOT_SAVED: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in (*cls.PARAMETERS, *cls.UNUSED):
            doc = cls.PARAMETERS[name][1] if name in cls.PARAMETERS else f"does nothing here: {cls.UNUSED[name]}"
            setattr(cls, name, Param(Params._dummy(), name, doc))
            words = "".join(part.capitalize() for part in name.split("_"))
            made = {f"set{words}": _setter(name), f"get{words}": _getter(name)}
            if name in _IRREGULAR:
                made[_IRREGULAR[name]] = made[f"set{words}"]
            for method, function in made.items():
                if not hasattr(cls, method):
                    setattr(cls, method, function)

    def __init__(self, **parameters: Any) -> None:
        super().__init__()
        self._setDefault(**{name: default for name, (default, _) in self.PARAMETERS.items()})
        self.setParams(**parameters)

    def setParams(self, **parameters: Any) -> Any:
        """Set parameters.

        Raises:
            TypeError: there is no such parameter.
        """
        for name, value in parameters.items():
            if name in self.UNUSED and value is not None:
                warnings.warn(f"{name} does nothing here: {self.UNUSED[name]}", stacklevel=3)
            elif name not in self.PARAMETERS and name not in self.UNUSED:
                known = ", ".join(sorted(self.PARAMETERS))
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}: there are {known}")
        self._set(**{name: value for name, value in parameters.items() if name in self.PARAMETERS})
        return self

    def value(self, name: str) -> Any:
        """Return the value of a parameter."""
        return self.getOrDefault(self.getParam(name))

    # --- saving ----------------------------------------------------------------------------------------------------

    def write(self) -> Any:
        """Return the writer of this stage.

        Raises:
            SpecError: there is no SparkContext, as on Spark Connect.
        """
        active_context()
        return _Writer(self)

    @classmethod
    def read(cls) -> Any:
        """Return the reader of saved stages. Reading one executes pickles: load only stages that you trust.

        Raises:
            SpecError: there is no SparkContext, as on Spark Connect.
        """
        active_context()
        return _Reader(cls)


def _setter(name: str) -> Any:
    def set_value(self: Declared, value: Any) -> Any:
        return self.setParams(**{name: value})

    return set_value


def _getter(name: str) -> Any:
    def get_value(self: Declared) -> Any:
        return self.value(name) if name in self.PARAMETERS else None

    return get_value


# In one element of an RDD; Spark takes less than 2 GB.
_CHUNK = 64 << 20


class _Writer(MLWriter):
    """Writes a stage: Spark's metadata, and the values in separate files, through Spark's own Hadoop.

    Args:
        stage: the stage.
    """

    def __init__(self, stage: Declared) -> None:
        super().__init__()
        self._stage = stage

    def saveImpl(self, path: str) -> None:
        stage, context = self._stage, self.sparkSession.sparkContext
        DefaultParamsWriter.saveMetadata(stage, path, context, paramMap={})
        values = {each.name: stage.getOrDefault(each) for each in stage.params if stage.isSet(each)}
        # In one pickle, because an optimizer holds the very parameters of its model.
        data = cloudpickle.dumps({name: value for name, value in values.items() if name not in stage.NOT_SAVED})
        chunks = [(at, data[at : at + _CHUNK]) for at in range(0, len(data), _CHUNK)]
        context.parallelize(chunks, len(chunks)).saveAsPickleFile(f"{path}/values")


class _Reader(MLReader):
    """Reads a stage that `_Writer` has written.

    Args:
        kind: the class of the stage.
    """

    def __init__(self, kind: type[Declared]) -> None:
        super().__init__()
        self._kind = kind

    def load(self, path: str) -> Any:
        """Return the stage at a path."""
        context = self.sparkSession.sparkContext
        metadata = DefaultParamsReader.loadMetadata(path, context)
        stage = self._kind()
        stage._resetUid(metadata["uid"])
        chunks = sorted(context.pickleFile(f"{path}/values").collect())
        stage._set(**pickle.loads(b"".join(data for _, data in chunks)))
        return stage
