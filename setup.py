"Dependencies come from settings.ini, the long description from README.md; everything else stands in pyproject.toml."
import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

root = Path(__file__).parent
config = ConfigParser()
config.read(root/"settings.ini", encoding="utf-8")
lists = {name: value.split() for name, value in config["dependencies"].items()}

def described():
    "README.md with the addresses of its pictures in full, as a page elsewhere needs them."
    host = re.search(r'^Repository = "(.*)"', (root/"pyproject.toml").read_text(encoding="utf-8"), re.M)[1]
    return re.sub(r"\]\((?=nbs/)", f"]({host}/raw/main/", (root/"README.md").read_text(encoding="utf-8"))

class Build(build_py):
    "Leave out what only nbdev reads."
    def find_package_modules(self, package, folder):
        return [m for m in super().find_package_modules(package, folder) if m[1] != "_modidx"]

setup(install_requires=lists.pop("requirements"), extras_require=lists, cmdclass=dict(build_py=Build),
      long_description=described(), long_description_content_type="text/markdown")
