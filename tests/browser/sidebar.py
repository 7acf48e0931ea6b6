"""The sidebar as its user sees it: a list of jobs, each with buttons and a menu."""

THEMES = ("JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast")


class Sidebar:
    """The list of all jobs at the side of a page."""

    def __init__(self, page):
        self.page = page
        self.node = page.locator(".jp-nbtorchjob-sidebar")
        # A layout that is restored later would hide the sidebar.
        page.evaluate("() => window.jupyterapp.restored.then(() => null)")
        tab = page.get_by_role("tab", name="Torch Jobs")
        if tab.get_attribute("aria-selected") != "true":
            tab.click()
        self.node.wait_for()

    def search(self, text):
        """Show only jobs that match."""
        self.node.get_by_role("textbox", name="Search jobs").fill(text)

    def job(self, name, status=""):
        """Search for a job, and wait until it is listed with that status; return its row."""
        self.search(name)  # of many rows only those in view are drawn
        row = self.node.get_by_role("row")
        for part, text in {"name": name, "word": status}.items():
            if text:
                row = row.filter(has=self.page.locator(f".jp-nbtorchjob-jobs-{part}:text-is('{text}')"))
        row.wait_for()
        return row

    def press(self, name, button):
        """Press a button of a job's row."""
        row = self.job(name)
        row.hover()
        row.get_by_role("button", name=button).click()

    def menu(self, name):
        """Open a job's menu; return the labels that it offers."""
        self.job(name).click(button="right")
        self.page.locator(".lm-Menu").wait_for()
        return self.page.locator(".lm-Menu .lm-Menu-itemLabel").all_inner_texts()

    def choose(self, name, label):
        """Choose from a job's menu."""
        self.menu(name)
        self.page.get_by_role("menuitem", name=label).click()
