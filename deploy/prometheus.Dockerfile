# SPDX-License-Identifier: Apache-2.0
# The Prometheus of docker-compose.prometheus.yml: Debian's package with our configuration.
# The context is the repository's root, as for attnd itself.

FROM debian:bookworm-slim
RUN apt-get -qq update \
 && apt-get -qq install -y --no-install-recommends prometheus \
 && rm -rf /var/lib/apt/lists/*
COPY deploy/prometheus/ /etc/prometheus/
# A mistake in the configuration or in a rule fails the build, not the start. The folder's owner
# becomes that of a new volume.
RUN promtool check config /etc/prometheus/prometheus.yml \
 && install -d -o 65532 -g 65532 /data
USER 65532:65532
VOLUME /data
EXPOSE 9090
# The image has no HTTP client, but bash can open a socket.
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 CMD ["bash", "-c", \
  "exec 3<>/dev/tcp/127.0.0.1/9090 && printf 'GET /-/ready HTTP/1.1\\r\\nHost: prometheus\\r\\nConnection: close\\r\\n\\r\\n' >&3 && read -r _ status _ <&3 && [ \"$status\" = 200 ]"]
ENTRYPOINT ["prometheus", "--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/data"]
