# Everything a developer needs; `make help` lists it.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help build postgresql up down status test lint soak upgrade-test bench bench-scheduler compose-test instructions \
	record-release

# Options of `make up`, as variables: make up NODES=5 API_REPLICAS=2 DETACH=1
OPTIONS := NODES API_REPLICAS WORKER_REPLICAS NODEGATE_REPLICAS API_PORT NODEGATE_PORT RESTART HEARTBEAT \
	FEATURE_GATES ROUTED_CIDR DATABASE_URL HORCHESTRA_HOME
# What was not given is not passed on: an empty value is no value.
$(foreach option,$(OPTIONS),$(if $(strip $($(option))),$(eval export $(option)),$(eval unexport $(option))))

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
LOCAL := $(TARGET)/debug/horchestra-local
BINARIES := --bin horchestra-api --bin horchestra-workers --bin horchestra-nodegate \
	--bin horchestra-agent --bin horchestra-local

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: ## Build every binary (development profile)
	@command -v $(firstword $(CARGO)) >/dev/null || { echo "error: there is no $(firstword $(CARGO)): install Rust (https://rustup.rs)" >&2; exit 1; }
	$(CARGO) build --locked $(BINARIES)

# What is missing is better said before a build than after it. As root the package is installed where that is possible.
postgresql:
	@test -n "$$DATABASE_URL" || [ "$$(id -u)" = 0 ] || command -v postgres >/dev/null || \
	{ command -v pg_config >/dev/null && [ -x "$$(pg_config --bindir)/postgres" ]; } || \
	compgen -G '/usr/lib*/postgresql/*/bin/postgres' >/dev/null || \
	{ echo "error: there are no PostgreSQL server programs (initdb, postgres): install PostgreSQL 14 or later" \
	"(Debian and Ubuntu: the package postgresql), or name a database in DATABASE_URL" >&2; exit 1; }

up: postgresql build ## Start a whole stack on this machine (DETACH=1: in the background)
	@$(LOCAL) up $(if $(filter 1,$(DETACH)),--detach)

down: ## Stop the stack; its data stays
	@if [ -x $(LOCAL) ]; then $(LOCAL) down; else echo "There is nothing to stop: nothing was built."; fi

status: ## Say what runs
	@if [ -x $(LOCAL) ]; then $(LOCAL) status; else echo "Nothing was built yet: make up"; fi

# Building the tests builds every binary as well, with the libraries of the tests: `build` before it would
# only build a part of all that a second time.
test: ## Run every test (starts what it needs)
	@command -v kubectl >/dev/null || echo "NOTE: no kubectl on PATH; the kubectl tests will say so and pass over"
	@command -v prometheus >/dev/null || echo "NOTE: no prometheus on PATH; its test will say so and pass over most of it"
	@command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || echo "NOTE: no pgbouncer on PATH; its tests will say so and pass over"
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		$(CARGO) nextest run --locked --workspace; \
	else \
		$(CARGO) test --locked --workspace --all-targets; \
	fi
	$(CARGO) test --locked --workspace --doc

# Essays link to private items: the docs are for readers of the code, and are rendered with them. The rules of
# the workspace are a test; for the whole workspace, so that `make test` finds built what this has built.
lint: ## Formatting, clippy, documentation, licences and advisories
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --locked --workspace --no-deps --document-private-items --quiet
	$(CARGO) test --locked --quiet --workspace --test it workspace::
	@if ! command -v cargo-deny >/dev/null; then \
		echo "advisories: passed over, cargo-deny is not installed (licences were checked by the test above)"; \
	elif ! $(CARGO) deny fetch db >/dev/null 2>&1; then \
		echo "advisories: passed over, the advisory database cannot be reached"; \
		$(CARGO) deny --offline check bans licenses sources; \
	else \
		$(CARGO) deny check; \
	fi

# Parts: what is done to everything, to the leaders of the loops, and to gateways.
SOAK := $(if $(ROUNDS),--rounds $(ROUNDS),--minutes $(or $(MINUTES),30))
SOAK_PART := $(or $(PART),everything)
soak: build ## Break things under load for MINUTES=30 (or ROUNDS=n things) and check every change (PART=leaders or gateways: only those)
	@$(LOCAL) soak $(filter-out leaders,$(SOAK_PART)) $(SOAK) $(if $(NODES),--nodes $(NODES)) $(if $(SEED),--seed $(SEED))

# The other revision is built in a tree and a folder of its own, which stay: a second run finds it built.
upgrade-test: ## Upgrade a stack under load from the programs of another revision (FROM=v0.1.0; UPGRADE_WITHOUT_GATEWAYS=1)
	@test -n "$(FROM)" || { echo "From which revision? make upgrade-test FROM=<git revision>"; exit 2; }
	@folder="$(abspath $(TARGET))/from" && from=$$(git rev-parse --verify --quiet "$(FROM)^{commit}") || \
	{ echo "There is no revision $(FROM) here"; exit 2; } && git worktree prune && \
	if [ -e "$$folder/tree/.git" ]; then git -C "$$folder/tree" checkout --quiet --detach "$$from"; \
	else git worktree add --quiet --detach "$$folder/tree" "$$from"; fi && \
	cd "$$folder/tree" && CARGO_TARGET_DIR="$$folder" $(CARGO) build --locked $(BINARIES)
	UPGRADE_FROM_BINARIES="$(abspath $(TARGET))/from/debug" $(CARGO) test --locked --workspace --test it \
		rolling::an_upgrade_under_load_is_not_noticed -- --nocapture

bench: ## Measure beside physical limits; the report goes to target/bench (BENCH='--quick --only writes': parts)
	$(CARGO) build --locked --release $(BINARIES)
	$(TARGET)/release/horchestra-local bench $(BENCH)

bench-scheduler: ## Measure the scheduler beside Kubernetes' floors, and a fleet at rest (PART=decisions, binds or steady)
	$(CARGO) bench --locked -p horchestra-workers --bench scheduler $(if $(PART),-- $(PART))

compose-test: ## Try docker-compose.yml for real: build, start, kill, remove (STAND_INS=1: without an image registry)
	$(if $(filter 1,$(STAND_INS)),$(CARGO) build --locked --release $(BINARIES))
	api/local/compose/verify.sh $(if $(filter 1,$(STAND_INS)),--stand-ins)

# What the version that is being released asks of its database; later ones are held against it.
record-release: ## Write down what this version asks of the schema, when it is released
	RECORD_RELEASE=1 $(CARGO) test --locked -p horchestra-store --test it released::programs_of_the_last_release

# Of one create through the service, in the present tree and in that of BASE, which gets the same example program.
# Two numbers of creates are counted, so that what starting costs drops out.
EXAMPLE := api/service/examples/creates.rs
COUNT = valgrind --tool=callgrind --callgrind-out-file=/dev/null $(1)/release/examples/creates $(2) 2>&1 | sed -n 's/.*Collected : //p'
PER_CREATE = $$(( ($$($(call COUNT,$(1),1500)) - $$($(call COUNT,$(1),500))) / 1000 ))

instructions: ## Count the instructions of a create with valgrind, here and at another revision (BASE=main)
	$(CARGO) build --locked --release -p horchestra-service --example creates
	@here=$(call PER_CREATE,$(TARGET)); echo "here: $$here instructions for a create"; \
	if [ -n "$(BASE)" ]; then \
		tree=$$(mktemp -d) && trap 'git worktree remove --force "$$tree"' EXIT && \
		git worktree add --quiet --detach "$$tree" $(BASE) && \
		mkdir -p "$$tree/$(dir $(EXAMPLE))" && cp $(EXAMPLE) "$$tree/$(EXAMPLE)" && \
		(cd "$$tree" && CARGO_TARGET_DIR="$(abspath $(TARGET))/base" $(CARGO) build --locked --release -p horchestra-service --example creates) && \
		there=$(call PER_CREATE,$(abspath $(TARGET))/base) && \
		echo "$(BASE): $$there; here it is $$(( here * 10000 / there )) of 10000"; \
	fi
