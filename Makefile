# The few verbs people need. `make demo` and `make test` are all the set-up there is.

CARGO ?= cargo
IMAGE ?= onceproxy:0.1.0
# How the binary of the development profile is built. `make test` has built it already, with the tests' dependencies.
BUILD ?= $(CARGO) build --locked --bin onceproxy

# Most tests wait for clocks and for other processes, so that there may be more of them than processors.
export RUST_TEST_THREADS ?= $(shell expr 2 \* $$(nproc))

.PHONY: demo build test test-stores test-production soak test-load test-deploy test-celery test-clients bench bench-limit fuzz check fmt clippy doc deps schema duplicates image static optimized dist clean

demo: ## Runs the proxy against a counting upstream, on the embedded disk store; stays up until Ctrl-C (ARGS=--once ends).
	$(CARGO) run --release --quiet --locked -- demo $(ARGS)

build: ## The release binary, target/release/onceproxy.
	$(CARGO) build --release --locked

test: deps ## All tests, with real Redis and Postgres servers; installs what they need.
	$(CARGO) test --locked --all-targets --no-run
	@# Beside the tests, most of which wait. `make static` below waits for it.
	nice -n 19 ./scripts/build-static >/dev/null 2>&1 &
	$(CARGO) test --locked --all-targets
	$(CARGO) test --locked --doc
	$(CARGO) test --locked --features otel --lib -- trace:: config::
	$(CARGO) test --locked --features otel --test it -- traces:: request_log::
	$(MAKE) test-deploy test-celery BUILD="$(CARGO) test --locked --no-run --test it"
	$(MAKE) static
	$(MAKE) test-clients

test-stores: deps ## The stores as they are run in production, on real servers that the tests start: a part of `make test`.
	$(CARGO) test --locked --test it -- topologies:: storm::

test-production: ## What production does, with the real programs (nginx that goes away, a name that moves); part of .ci/run.
	./scripts/install-test-packages nginx
	$(CARGO) test --locked --test it -- --ignored production::

soak: deps ## Ten minutes of faults in turn under load, on Redis and on Postgres (ONCEPROXY_SOAK_SECONDS=300 each).
	$(CARGO) test --locked --test it -- --ignored --nocapture --test-threads 1 soak::

test-load: build ## The figures of what many connections and large bodies cost; needs 12,000 open files a process.
	./scripts/install-client-tools
	.venv/bin/python -m pytest -q -s -m load tests/clients

test-deploy: deps ## Manifests, alerts and dashboard against the binary; makes .venv with the tools.
	./scripts/install-deploy-tools
	$(BUILD)
	.venv/bin/python -m pytest -q tests/deploy

bench: build ## Beside nginx, HAProxy and a hand-written layer (ARGS=--long: growth); cargo bench --bench parts, or disk: only those.
	./scripts/install-bench-packages
	python3 benches/run.py $${CARGO_TARGET_DIR:-target}/release/onceproxy $(ARGS)

bench-limit: build ## The same, and beside it the optimized build and the least that a proxy on these libraries can do.
	./scripts/install-bench-packages
	$(CARGO) build --release --locked --example limit
	optimized="$$(./scripts/build-optimized)" && cd $${CARGO_TARGET_DIR:-target}/release \
	    && python3 $(CURDIR)/benches/run.py onceproxy --optimized "$$optimized" --limit examples/limit $(ARGS)

test-celery: deps ## A Celery worker that is killed and cut off, with the proxy and without; the guides; makes .venv with Celery.
	./scripts/install-celery
	$(BUILD)
	@# At once: both mostly wait, for time-outs of the broker and for Sidekiq's first retry.
	.venv/bin/python tests/guides & guides=$$!; .venv/bin/python tests/celery; celery=$$?; wait $$guides && exit $$celery

test-clients: deps ## Real clients against the static release binary: curl, h2load, Python, Node, Go, Stripe's SDKs, gRPC.
	./scripts/install-client-tools
	binary="$$(./scripts/build-static)" && ONCEPROXY_BIN="$$binary" .venv/bin/python -m pytest -q -m "load or not load" tests/clients

fuzz: ## Each fuzz target for 20 seconds, from the kept inputs (ARGS="SECONDS [TARGET...]"); needs a nightly compiler.
	./scripts/install-fuzz-tools
	./scripts/fuzz $(ARGS)

check: fmt clippy doc ## What must be clean besides the tests.

fmt:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(CARGO) clippy --locked --all-targets --features otel -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --document-private-items --features otel

deps: ## Debian packages that the tests need and that are missing.
	./scripts/install-test-packages

image: ## The container image, with Docker, Podman or Buildah (IMAGE=name:tag, PLATFORMS=linux/amd64,linux/arm64).
	./scripts/build-image $(IMAGE)

static: ## A static binary, run as the image would run it; prints its path and size.
	./scripts/install-deploy-tools
	binary="$$(./scripts/build-static)" && ls -l "$$binary" \
	    && ONCEPROXY_BIN="$$binary" ONCEPROXY_STATIC="$$binary" .venv/bin/python -m pytest -q tests/deploy/test_image.py

optimized: ## The release binary, built by a profile of its own work, and faster for it; prints its path.
	./scripts/build-optimized

schema: ## Writes config.schema.json anew, after a change of the settings.
	$(CARGO) test --locked --quiet --lib -- --ignored write_the_schema_for_editors

duplicates: ## Writes the table of duplicates in docs/configuration.md anew, after a change of what counts as the same.
	$(CARGO) test --locked --quiet --test it -- --ignored write_the_table_of_the_documentation

dist: ## The release archive: static binary (or BINARY=), manual pages, completions, schema, documents; prints its path.
	./scripts/dist $(BINARY)

clean:
	$(CARGO) clean
