# CI runs `just verify`.

default: verify

fmt:
    cargo fmt --all

lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --locked -- -D warnings

test:
    cargo test --workspace --locked

chaos seeds="20":
    MILLRACE_CHAOS_SEEDS={{seeds}} cargo test -p millrace-tests --test chaos --locked

demo:
    cargo run -- run "How do these licences treat patents, and when does a patent grant end?" --docs examples/licences

bench:
    cargo run --release -- bench all

verify:
    bash .ci/run
