# SPDX-License-Identifier: Apache-2.0
# The proxy of docker-compose.yml: Debian's HAProxy with our configuration.
# The context is the repository's root, as for attnd itself.

FROM debian:bookworm-slim
RUN apt-get -qq update \
 && apt-get -qq install -y --no-install-recommends haproxy \
 && rm -rf /var/lib/apt/lists/*
COPY deploy/haproxy.cfg /etc/haproxy/haproxy.cfg
# A mistake in the configuration fails the build, not the start. (The replicas' name does not
# resolve here; `init-addr none` in the configuration allows that.)
RUN haproxy -c -f /etc/haproxy/haproxy.cfg
USER 65532:65532
EXPOSE 8080 8405
# The image has no HTTP client, but bash can open a socket. Only status 200 counts: a proxy
# without a ready replica is not healthy.
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 CMD ["bash", "-c", \
  "exec 3<>/dev/tcp/127.0.0.1/8080 && printf 'GET /v2/health/ready HTTP/1.1\\r\\nHost: proxy\\r\\nConnection: close\\r\\n\\r\\n' >&3 && read -r _ status _ <&3 && [ \"$status\" = 200 ]"]
# On SIGUSR1 HAProxy finishes the requests in progress; on SIGTERM it would cut them off.
STOPSIGNAL SIGUSR1
# HAProxy takes any name, and asks for it for ever. -db: stay in the foreground.
ENTRYPOINT ["bash", "-c", \
  "[[ ${ATTND_NAME-attnd} =~ ^[[:alnum:]._-]+$ ]] || { echo \"ATTND_NAME is '$ATTND_NAME'; give the name of the replicas alone, such as attnd\" >&2; exit 1; }; exec haproxy -db -f /etc/haproxy/haproxy.cfg \"$@\"", "haproxy"]
