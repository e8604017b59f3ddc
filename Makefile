# CodeHub: `make run` starts it, `make test` tries it. Everything is installed into .venv, nothing elsewhere.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 4 # of the tests: half of their time is waiting
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
PRODUCTION := CODEHUB_PUBLIC_URL=https://code.example.org ALLOWED_HOSTS=code.example.org CODEHUB_WORKSPACE_DOMAIN=work.example.org
FAKE_SECRET := DJANGO_SECRET_KEY=only-for-checks-0123456789-abcdefghijklmnopqrstuvwxyz-9876543210
.PHONY: help run test check format bench soak

help: ## what there is to do
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/'

run: $(VENV)/.run ## CodeHub on http://127.0.0.1:8000 (PORT), with everything it needs
	@exec $(BIN)/python manage.py up

test: $(VENV)/.dev ## all tests this machine can run, on real services
	@marks="$$($(BIN)/python -m tests.available)" && exec $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "$$marks"

check: $(VENV)/.dev ## style, types, who imports whom, templates, migrations, production settings
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(FAKE_SECRET) $(BIN)/mypy codehub codehub_cli workspaces coordinator tests $(wildcard bench)
	$(BIN)/lint-imports
	$(BIN)/djlint --quiet --lint templates
	$(FAKE_SECRET) $(BIN)/python -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run
	$(FAKE_SECRET) $(PRODUCTION) $(BIN)/python manage.py check --deploy --fail-level WARNING

format: $(VENV)/.dev ## rewrite the code in the house style
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

bench soak: $(VENV)/.dev ## bench: times on this machine; soak: faults for a while, invariants checked
	@exec $(BIN)/python -m bench$(if $(filter soak,$@),.soak)

$(VENV)/.run: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[embedded]' && touch $@
$(VENV)/.dev: $(VENV)/.run
	$(PIP) --editable '.[embedded,dev]' && touch $@
