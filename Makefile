# The few verbs people need. `make demo` and `make test` are all the set-up there is.

CARGO ?= cargo

.PHONY: demo build test check fmt clippy doc deps clean

demo: ## Runs the proxy against a counting upstream, on the embedded disk store; stays up until Ctrl-C (ARGS=--once ends).
	$(CARGO) run --release --quiet --locked -- demo $(ARGS)

build: ## The release binary, target/release/onceproxy.
	$(CARGO) build --release --locked

test: deps ## All tests, with real Redis servers; installs what they need.
	$(CARGO) test --locked --all-targets
	$(CARGO) test --locked --doc

check: fmt clippy doc ## What must be clean besides the tests.

fmt:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --locked --all-targets -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --document-private-items

deps: ## Debian packages that the tests need and that are missing.
	./scripts/install-test-packages

clean:
	$(CARGO) clean
