# CodeHub itself (web, coordinator, Celery worker): one image, the command says which.
FROM python:3.11-slim
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1
WORKDIR /srv/codehub
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY codehub/__init__.py codehub/__init__.py
# The libraries first: they change less often than the code.
RUN pip install --quiet --constraint constraints.txt .
COPY . .
RUN pip install --quiet --no-deps --editable . \
 && DJANGO_SECRET_KEY=only-for-the-build python manage.py collectstatic --noinput --verbosity 0 \
 && useradd --system --uid 10001 codehub && mkdir /data && chown codehub /data
ENV CODEHUB_DATA_DIR=/data LOG_FORMAT=json
USER codehub
CMD ["python", "manage.py", "run_web"]
