"""A method whose clients read no labels: it draws two views of a sample together."""

from dataclasses import dataclass

from fedsieve.core.part import Method, Part, Stage


@dataclass(frozen=True, kw_only=True)
class Views(Part):
    """The squared distance of two views' logits, kept away from zero; tells how many labels the client has."""

    up = {"labels": ()}

    def loss(self, c, net, batch):
        one, two = net.logits(batch), net.logits(batch, "train#2")
        return (one - two).square().mean() + (one.square().mean() - 1).square()

    def finish(self, c):
        return {"labels": int((c.labels.given >= 0).sum())}


def views(part: Views) -> Method:
    return Method("views", (Stage(parts=(part,)),))


def encoder(part: Views) -> Method:
    """The same, whose classifier nobody tests."""
    return Method("encoder", (Stage(parts=(part,)),), test="probe")
