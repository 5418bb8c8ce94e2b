# One image for the scheduler and the controller. The binaries are built outside (make image-binaries): static, so that nothing
# else is needed, and reproducible. TARGETARCH is set by buildx for each platform, and by make image: a default would hide that.
FROM scratch
ARG TARGETARCH
COPY bin/image/linux/${TARGETARCH}/ /
USER 65532:65532
ENTRYPOINT ["/pool-priority-scheduler"]
