# One image for the scheduler and the controller. The binaries are built outside (make image-binaries): static, so that nothing
# else is needed, and reproducible.
FROM scratch
ARG TARGETARCH=amd64
COPY bin/image/linux/${TARGETARCH}/ /
USER 65532:65532
ENTRYPOINT ["/pool-priority-scheduler"]
