"Read the dependency lists of settings.ini; everything else is declared in pyproject.toml."
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup

config = ConfigParser()
config.read(Path(__file__).with_name("settings.ini"), encoding="utf-8")
lists = {name: value.split() for name, value in config["dependencies"].items()}
setup(install_requires=lists.pop("requirements"), extras_require=lists)
