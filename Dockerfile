# One image for every process: compose.yaml gives each its command and its role.
FROM python:3.11-slim

RUN useradd --system --create-home --home-dir /var/lib/rolecall rolecall
WORKDIR /srv/rolecall
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY app ./app
COPY workers ./workers
COPY admin ./admin
RUN pip install --no-cache-dir -c constraints.txt .

USER rolecall
ENV DATA_DIR=/var/lib/rolecall PYTHONUNBUFFERED=1
CMD ["rolecall", "--help"]
