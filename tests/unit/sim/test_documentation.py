"""Generated documents are those that the code gives now."""

import pytest

from sim.documentation import DOCS, DOCUMENTS


@pytest.mark.parametrize("name", DOCUMENTS)
def test_generated_document_is_up_to_date(name):
    assert (DOCS / name).read_text(encoding="utf-8") == DOCUMENTS[name](), "run: python -m sim.documentation"
