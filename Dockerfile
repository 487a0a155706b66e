FROM python:3.11-slim

# Dependencies first: they change rarely, and the layer is kept.
WORKDIR /src
COPY requirements/runtime.txt requirements/runtime.txt
RUN pip install --no-cache-dir --require-hashes -r requirements/runtime.txt

COPY pyproject.toml README.md LICENSE ./
COPY rollscope rollscope
COPY collectors collectors
COPY server server
COPY dashboard dashboard
COPY demo demo
COPY migrations migrations
RUN pip install --no-cache-dir --no-deps --no-build-isolation .

# Never root: Rollscope only reads what it is given and writes its own store.
RUN useradd --create-home rollscope
USER rollscope
WORKDIR /home/rollscope

ENV ROLLSCOPE_HOST=0.0.0.0 ROLLSCOPE_PORT=8050
EXPOSE 8050
HEALTHCHECK CMD python -c "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['ROLLSCOPE_PORT'] + '/healthz', timeout=3)"
ENTRYPOINT ["rollscope"]
CMD ["up", "--no-browser"]
