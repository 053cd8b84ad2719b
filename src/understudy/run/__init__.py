"""Running a method on a target: `sample`, and the record it keeps."""

from understudy.run.sample import sample

__all__ = ["sample"]
