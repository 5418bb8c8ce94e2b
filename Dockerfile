# The binaries are built outside (make build): static, so that nothing else is needed.
FROM scratch
COPY bin/pool-priority-scheduler bin/pool-priority-controller /
USER 65532:65532
ENTRYPOINT ["/pool-priority-scheduler"]
