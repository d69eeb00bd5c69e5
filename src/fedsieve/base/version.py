"""The version, in one place: the package, its metadata and the files of a run take it from here."""

VERSION = "0.1.0"
