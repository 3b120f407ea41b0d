# The proxy as an image: one static binary and the certificates it trusts, nothing else. Built by `make image`.
#
# The build stage runs on the platform that is built for (natively, or emulated by the builder), where the Rust image's
# own target is the static musl one: no cross compiler, and no target to be downloaded.

FROM rust:1.95-alpine AS build
# The C compiler is for `ring` and mimalloc, the only dependencies with code that is not Rust.
RUN apk add --no-cache build-base ca-certificates
ARG TARGETARCH
RUN case "$TARGETARCH" in \
        amd64) echo x86_64-unknown-linux-musl ;; \
        arm64) echo aarch64-unknown-linux-musl ;; \
        *) echo "no image is built for $TARGETARCH: amd64 and arm64 are" >&2; exit 1 ;; \
    esac >/target
WORKDIR /build

# The dependencies are a layer of their own, which only another Cargo.toml or Cargo.lock invalidates.
COPY Cargo.toml Cargo.lock ./
RUN mkdir src && touch src/lib.rs && echo 'fn main() {}' >src/main.rs \
    && cargo build --release --locked --features otel --bin onceproxy --target "$(cat /target)" \
    && rm -r src

COPY src src
# Copied files keep their age, and Cargo goes by it: without the touch it may take the empty program above for this one.
RUN touch src/lib.rs src/main.rs \
    && cargo build --release --locked --features otel --bin onceproxy --target "$(cat /target)" \
    && mkdir -p /image/data \
    && cp "target/$(cat /target)/release/onceproxy" /image/onceproxy
# The last stage has no loader and no libraries: a binary that asks for any would not start there.
RUN ! readelf --program-headers --dynamic /image/onceproxy | grep -E 'INTERP|NEEDED' && /image/onceproxy --version

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /image/onceproxy /onceproxy
# Where the embedded store puts its folder unless told otherwise; a volume belongs here.
COPY --from=build --chown=65532:65532 /image/data /data
WORKDIR /data
# A number, so that runAsNonRoot can be checked without a user database.
USER 65532:65532
# No address is set here: the environment would win over a settings file's. Beyond loopback, say --listen.
EXPOSE 8080 9090
# Finds the admin listener as `serve` does: by ONCEPROXY_CONFIG, ONCEPROXY_ADMIN_LISTEN, else 127.0.0.1:9090.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["/onceproxy", "health"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/onceproxy"]
CMD ["serve"]
