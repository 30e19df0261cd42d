"""An administrator tries a policy in Chromium, on requests that really came, played by a worker."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import expect

from tests.journeys.signing_in import as_admin
from tests.rig.browser import chromium
from tests.rig.chat import chat
from tests.rig.product import Product
from tests.rig.witness import Witness

pytestmark = [pytest.mark.journey, pytest.mark.long, pytest.mark.timeout(240)]
REQUESTS = 6


def test_a_policy_is_tried_before_anybody_feels_it(product: Product, witness: Witness) -> None:
    """
    From the administration to the page, a number filled in, played by the running worker: both
    sides stand there without a reload, with the requests that really came.
    """
    keys = product.keys(tried="interactive", tried_batch="batch")
    for number in range(REQUESTS):
        for owner, key in keys.items():
            mark = f"{owner}/{number}"
            headers = {"Authorization": f"Bearer {key}", "X-Request-Id": mark}
            body = chat("witness", mark, stream=False)
            url = f"{product.url}/v1/chat/completions"
            assert httpx.post(url, json=body, headers=headers, timeout=30).status_code == 200
            product.usage(mark)  # waits for its row

    expect.set_options(timeout=60_000)
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        as_admin(page, product)
        page.goto(f"{product.url}/admin/")
        page.get_by_role("link", name="Try a policy").click()
        page.select_option("select[name=model]", "witness")
        page.fill("input[name=batch_slots]", "1")
        page.click("button:has-text('Play it')")
        found = page.get_by_role("table")
        expect(found).to_contain_text("as tried")
        expect(page.get_by_text("requests for witness in 7 days")).to_be_visible()
        lines = [row.locator("th,td").all_inner_texts() for row in found.locator("tbody tr").all()]
    rows = {line[0].strip(): [cell.strip() for cell in line[2:]] for line in lines}
    chats, batch = rows["Chats served"], rows["Batch requests served"]
    assert int(chats[0].replace(",", "")) >= REQUESTS
    assert int(batch[0].replace(",", "")) >= REQUESTS
    assert chats[0] == chats[1]
    assert batch[0] == batch[1]
