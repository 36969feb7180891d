"""The picture that the user gives to ``rondo run``, and what the network says of it."""

import dataclasses
import pathlib
from collections.abc import Sequence

from rich.table import Table

from sim import classes, draw
from sim import inputs as model_inputs
from sim.classes import COCO, Classification, Detections
from sim.cli.common import fail
from sim.detections import Detection, to_picture
from sim.pictures import Placement, Rgb, read_picture
from sw.reader.model import Model, Values


@dataclasses.dataclass
class Asked:
    """What the user wants of a picture. Files are read, and found to be writable, before anything long starts."""

    picture: Rgb | None
    out: pathlib.Path | None
    labels: tuple[str, ...] | None
    placement: Placement | None = None

    @classmethod
    def read(cls, image: pathlib.Path | None, out: pathlib.Path | None, labels: pathlib.Path | None) -> "Asked":
        """Raises ``PictureError`` for files that cannot be read or written."""
        if out is not None and image is None:
            fail("--draw needs a picture to draw on: --image FILE")
        if out is not None:
            draw.check_output(out)
        names = classes.read_labels(labels) if labels is not None else None
        picture = read_picture(image) if image is not None else None
        if out is not None:
            draw.check_output(out, picture)
        return cls(picture, out, names)

    def check(self, model: Model) -> None:
        """Refuse what this model's outputs cannot mean, before anything long starts."""
        count = classes.count(model)
        if count is None and (self.out is not None or self.labels is not None):
            option = "--draw" if self.out is not None else "--labels"
            fail(f"{option} is for YOLOv5 detectors and for classifiers; the outputs of {model.name} are of neither")
        # More names than classes are no better: with one too many in front, all would be wrong.
        if count is not None and self.labels is not None and len(self.labels) != count:
            fail(f"the labels have {len(self.labels):,} lines, but {model.name} has {count:,} classes")

    def inputs(self, model: Model) -> Values:
        """What the model is to work on: the picture, whole for a detector, its middle for others; else a default."""
        if self.picture is None:
            return model_inputs.default(model)
        values, self.placement = model_inputs.of_picture(model, self.picture, cropped=not classes.is_detector(model))
        return values

    def answer(self, model: Model, outputs: Values) -> "Answer | None":
        """What the outputs mean, if the user has named a picture or classes, and they mean anything that we know."""
        if self.picture is None and self.labels is None:
            return None
        found = classes.meaning(model, outputs)
        if isinstance(found, Detections):
            names = self.labels or (COCO if classes.count(model) == len(COCO) else ())
            detections = list(found.found)
            if self.picture is not None and self.placement is not None:
                detections = to_picture(detections, self.placement, *self.picture.shape[:2])
            return Answer(self, names, detections=detections)
        if isinstance(found, Classification):
            return Answer(self, self.labels or (), classification=found)
        return None


@dataclasses.dataclass
class Answer:
    """What a network says of a picture."""

    asked: Asked
    names: Sequence[str]
    detections: list[Detection] | None = None
    classification: Classification | None = None

    def table(self) -> Table:
        """For the terminal."""
        if self.detections is not None:
            table = Table(title=f"Detections: {len(self.detections)}")
            table.add_column("class")
            for name in ("score", "left", "top", "right", "bottom"):
                table.add_column(name, justify="right")
            for detection in self.detections:
                name = classes.label(detection.label, self.names)
                table.add_row(name, f"{detection.score:.2f}", *(f"{side:.0f}" for side in detection.box))
            return table
        assert self.classification is not None
        table = Table(title="Classes")
        table.add_column("class")
        table.add_column("probability", justify="right")
        for number, score in zip(self.classification.labels, self.classification.scores, strict=True):
            table.add_row(classes.label(number, self.names), f"{score:.4f}")
        return table

    def draw(self, path: pathlib.Path) -> None:
        """Write the picture with what was found. Raises ``PictureError``."""
        if self.asked.picture is None:
            return
        if self.detections is not None:
            draw.draw_detections(path, self.asked.picture, self.detections, self.names)
            return
        assert self.classification is not None
        name = classes.label(self.classification.labels[0], self.names)
        draw.draw_caption(path, self.asked.picture, f"{name} {self.classification.scores[0]:.2f}")
