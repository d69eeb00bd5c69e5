"""A method of one's own whose model has heads."""

from fedsieve.core import Method, Projector, Share, SideHead, Stage


def headed(sizes: Projector) -> Method:
    """A method of one's own whose model has a head in line and others at its side."""
    predictor = SideHead(name="predictor", base="projector", width=4)
    stays = Share(down=("*", "-anchor"), up=("*", "-anchor"), keep=("anchor",))
    return Method("headed", (Stage(),), heads=(sizes, predictor, SideHead(name="anchor", width=3)), share=stays)
