# What a release is called and where it will be found. A fork changes this file only.

# Folder of the releases: archives lie in $(RELEASE_URL)/$(VERSION)/.
RELEASE_URL ?= https://pleach.dev/releases
# Repository of the image in its registry.
IMAGE ?= pleach.dev/pleach
MAINTAINER ?= The pleach authors <releases@pleach.dev>
