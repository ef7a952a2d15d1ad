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
    MILLRACE_CHAOS_SEEDS={{seeds}} cargo test --workspace --test clusters --locked -- chaos::

# Attempts whose programs, hooks and MCP servers leave processes of every sort, ended in every way.
processes attempts="200":
    MILLRACE_FOREIGN_ATTEMPTS={{attempts}} cargo test --workspace --test clusters --locked -- foreign_processes:: --nocapture

# All seeds, kill points and rounds, of which the tests run a share. Takes hours.
soak:
    MILLRACE_CHAOS_SEEDS=200 MILLRACE_STORM_RUNS=5000 MILLRACE_KILL_SWEEP=5 MILLRACE_WAITING_SEEDS=50 \
    MILLRACE_POWER_LOSS_SEEDS=100 MILLRACE_QUEUE_ROUNDS=300 MILLRACE_ANSWER_RACES=1000 MILLRACE_BACKUPS=200 \
    MILLRACE_STREAM_SEEDS=50 MILLRACE_RETENTION_SEEDS=10 \
    cargo test --workspace --test clusters --test gateways --test it --locked --no-fail-fast -- \
        chaos:: crashes:: kill_sweep:: python_takeover:: queues:: waiting:: questions:: delegation:: backup:: \
        gateway::streams:: typescript_client:: retention::

# The images as they are delivered: static programs, built by the script of the Dockerfile.
images:
    MILLRACE_IMAGE_PROFILE=image cargo test --workspace --test clusters --locked -- image:: --nocapture

# The description of the HTTP API, and what is generated from it: types and operations of the clients.
api:
    UPDATE_GOLDEN=1 cargo test --workspace --lib --locked openapi
    python3 clients/python/scripts/generate_types.py
    python3 clients/python/scripts/generate_sync.py
    node clients/typescript/scripts/generate.mjs

demo:
    cargo run -- run "How do these licences treat patents, and when does a patent grant end?" --docs examples/licences

bench:
    cargo run --release -- bench all

verify:
    bash .ci/run
