# The binary is built outside (make build): static, so that nothing else is needed.
FROM scratch
COPY bin/pool-priority-scheduler /pool-priority-scheduler
USER 65532:65532
ENTRYPOINT ["/pool-priority-scheduler"]
